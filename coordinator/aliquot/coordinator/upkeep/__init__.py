"""What a leading coordinator does by the clock, beside answering."""
