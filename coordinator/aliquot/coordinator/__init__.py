"""The coordinator: decides who holds which part of which device, and makes that durable before anybody sees it."""
