"""Deliveries: what a webhook's receiver is sent, how it is signed, and where it may go."""
