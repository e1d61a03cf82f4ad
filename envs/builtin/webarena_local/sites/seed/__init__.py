"""What the sites hold: invented people, goods, posts, pages and projects, the same on every machine."""
