"""What the correctness suite on real engines is made of: engine sets, dialogues, what they are compared with, and a claim channel in between."""
