"""Callbacks for trainers: Hugging Face and Lightning."""
