"""Forecasts of demand by the hour: pure functions, and the programme that a coordinator runs beside itself."""
