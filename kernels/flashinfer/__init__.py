"""Attention, norms, rotary embedding and activation through FlashInfer."""
