"""What a cast showed, as text, as plain data and as one HTML page."""
