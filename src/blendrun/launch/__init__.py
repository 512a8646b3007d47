"""Data-parallel ranks: who does what, hand-over of work, watch, restart; and how ranks start."""
