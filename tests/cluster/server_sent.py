"""The events of a job as a rendezvous sends them to a browser."""

import http.client
import json

MARK = b"data: "


def events_of(port, job, patience_s, add_cleanup):
    """Each event of `job` as it comes, from the first on; waits until there is that job."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
    add_cleanup(connection.close)
    while True:
        connection.request("GET", f"/events?job={job}", headers={"Accept": "text/event-stream"})
        answer = connection.getresponse()
        if answer.status == 200:
            break
        answer.read()
    for line in answer:
        if line.startswith(MARK):
            yield json.loads(line[len(MARK):])
