"""The means by which a waiting request comes to its devices, one module each; `order` has the list, which is policy."""
