"""What a run did, from the files it left."""
