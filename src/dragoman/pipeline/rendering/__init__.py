"""What rendering a prompt needs besides the renderer."""
