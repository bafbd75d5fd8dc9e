"""What a TFLite file is, without TensorFlow: tensors, operators, contract, size, who loads it, Edge TPU verdict.

`model.inspect_path` lays a file open, `text.render` makes a page of it, `command.add_inspect` the command. Nothing is
imported here, so that the command's `--help` is quick on a small board.
"""
