"""What the engines share; `test_beam` and `test_spark` run it."""

from bert_tf.corpus.engines import pipeline


def test_the_number_of_tasks_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "MAX_TASKS", 10)
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    (tmp_path / "b.gz").write_bytes(b"x" * 10_000)
    paths = [f"{tmp_path}/a", f"{tmp_path}/b.gz"]
    tasks = list(pipeline.plan_tasks(paths, 10))
    assert [task.ranges[0].path for task in tasks] == [paths[0]] * 10 + [
        paths[1]
    ]
    assert len(list(pipeline.plan_tasks(paths, 5000))) == 3
