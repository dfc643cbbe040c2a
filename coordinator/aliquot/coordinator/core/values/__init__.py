"""Values that every floor knows: types, errors, times and troubles."""
