"""Compares methods: the same model, text, tokens and warm start, and the bytes that each sends."""
