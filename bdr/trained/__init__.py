"""What a finished run is good for: its model handed out, read, exported and asked, and the pictures that it needs."""
