"""One small net of each family of timm, torchvision, transformers and torchaudio, by both flows."""
