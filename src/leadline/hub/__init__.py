"""Models from folders: Leadline's own and Hugging Face's, with their tokenizers and text."""
