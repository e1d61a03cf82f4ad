"""The kinds of page that the CMS has."""
