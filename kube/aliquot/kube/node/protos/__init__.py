"""The kubelet's interfaces as far as they are used here: the same packages, names and field numbers as Kubernetes has.

Stubs are generated beside the `.proto` files, as the contract's are.
"""
