"""What can be deleted without changing the rest of the library.

A job has its options in `options`, as in `bert_tf.jobs`. Core modules never
import this package. Its jobs are found by name: their modules in `bert_tf.jobs`
and `bert_tf.command.CONTRIB` have the names as strings.
"""
