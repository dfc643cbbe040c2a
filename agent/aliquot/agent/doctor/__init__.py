"""`aliquot doctor`: what this node offers, and a proof that each tier of enforcement holds."""
