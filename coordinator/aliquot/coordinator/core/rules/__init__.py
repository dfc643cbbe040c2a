"""What may be: questions that several decisions ask, answered without deciding anything."""
