"""The bridge to Hugging Face: what their files say as a recipe and weights of ours, and back."""
