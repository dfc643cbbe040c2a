"""Where facts become durable: one protocol with several stores behind it."""
