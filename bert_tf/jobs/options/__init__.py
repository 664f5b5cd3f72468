"""The options of each job, its page of help, and checks of its command line.

A module has the name of its job in `bert_tf.jobs`; its docstring is what --help
prints. None imports TensorFlow or Keras, which takes seconds, so that mistakes
in a command line are reported at once.
"""
