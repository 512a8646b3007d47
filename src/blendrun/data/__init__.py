"""Files in, files out: reads prompts into tokens and results back into files.

Knows nothing of costs, trees, schedules or engines.
"""
