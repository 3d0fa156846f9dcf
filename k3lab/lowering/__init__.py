"""A FlyDSL launch lowered: IR module, ISA text, resource table, ISA lint.

`capture.lower` takes a launcher to a `Module`, `parse.parse` reads one from text, `isa.compile_isa` takes it to gfx950
assembly, `lint.lint` checks that, and `store` keeps a module in a file. FlyDSL is imported inside functions only.
"""
