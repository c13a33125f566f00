"""Public data sets in the form of logged lists, as far as they hold any."""
