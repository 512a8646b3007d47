"""What the comparison scripts share: jobs, the command line under test, and its peers."""
