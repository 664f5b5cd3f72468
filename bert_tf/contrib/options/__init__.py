"""The options of the jobs in `bert_tf.contrib`; see `bert_tf.jobs.options`."""
