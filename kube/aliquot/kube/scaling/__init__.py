"""What autoscalers ask: KEDA's external scaler, and the metrics APIs behind the API server."""
