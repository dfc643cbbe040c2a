"""The demonstration: a pool of simulated GPUs serves real processes while its parts are broken."""
