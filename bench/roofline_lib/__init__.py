"""Parts of bench/roofline.py: pictures, and the page's tables."""
