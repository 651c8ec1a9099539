"""What is not the core loop: on top of store and policy, each apart from the others."""
