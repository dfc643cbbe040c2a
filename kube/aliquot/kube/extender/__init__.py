"""The extender of a stock kube-scheduler: filter, prioritise, bind and preempt, decided by the pool."""
