"""The uses of a finished run: its model for inference, recognition, export, and the pictures that extensions need."""
