"""What-if: replay a list of requests on a described pool, with any policy, and see what would have happened."""
