"""The single writer, its journal, and who may lead: the only way anything changes."""
