"""MLA: from the normed row to the decode attention's query and cache entry."""
