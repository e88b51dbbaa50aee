//! The metrics of the server: what each one counts. The code that records them is where it happens.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

/// All histograms measure seconds.
const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, help }
}

/// Every metric that the program records. A test compares this table with the code.
pub(crate) const METRICS: &[Metric] = &[
    counter(
        "atelier_http_requests_total",
        "HTTP requests that were answered, by method, route and status.",
    ),
    histogram(
        "atelier_http_request_seconds",
        "Seconds from a request to the start of its answer, by method and route.",
    ),
    gauge("atelier_event_streams", "Event streams that are open."),
    gauge("atelier_worker_spaces", "Worker spaces that are in use on this node."),
    counter(
        "atelier_worker_space_initializations_total",
        "Worker spaces that were created on this node.",
    ),
    counter(
        "atelier_budget_warnings_total",
        "Budgets of which 80 % were used, by whose budget it is.",
    ),
    counter("atelier_worker_space_alerts_total", "Alerts that worker spaces raised, by alert."),
    gauge("atelier_active_agents", "Agents that are at work on a task, of all projects."),
    gauge("atelier_agent_cache_entries", "Entries of all agent caches on this node."),
    counter("atelier_agent_cache_hits_total", "Agents that were found in the agent cache."),
    counter("atelier_agent_cache_misses_total", "Agents that had to be loaded from the database."),
    gauge("atelier_active_tasks", "Requests that are running in worker spaces of this node."),
    gauge(
        "atelier_queued_tasks",
        "Tasks of agents that wait in their queues, of all projects in the database.",
    ),
    gauge(
        "atelier_waiting_requests",
        "Requests that wait for a free slot in a worker space of this node.",
    ),
    gauge("atelier_running_tasks", "Tasks of agents that this node is running."),
    gauge(
        "atelier_bus_queued_tasks",
        "Tasks that wait in the queues of the agent bus, of all projects in the database.",
    ),
    counter(
        "atelier_interrupted_tasks_total",
        "Tasks whose run broke off, with their node or their database, by outcome: resumed or failed.",
    ),
    gauge("atelier_live_nodes", "Nodes that share the database and are alive, this one included."),
    counter(
        "atelier_lost_notifications_total",
        "Messages to other nodes that could not be sent, by cause. Other nodes then learn of \
         changes a few seconds later.",
    ),
    gauge(
        "atelier_database_connections",
        "Connections to the database that requests and writes of this node may use.",
    ),
    gauge(
        "atelier_database_connections_in_use",
        "Connections to the database that are in use. On PostgreSQL, each lane keeps one.",
    ),
    gauge("atelier_waiting_writes", "Writes that wait in the lanes of this node."),
    histogram(
        "atelier_lane_wait_seconds",
        "Seconds that a write waited in its lane until it was begun.",
    ),
    counter(
        "atelier_object_store_errors_total",
        "Requests to the object store that failed or took too long.",
    ),
    gauge(
        "atelier_stale_copies",
        "Readable copies of conversation files that are still to be made, of all nodes.",
    ),
    counter("atelier_messages_total", "Messages that were sent to agents."),
    histogram("atelier_model_seconds", "Seconds that a model took for one answer."),
    counter("atelier_tool_calls_total", "Tool calls, by risk (their verdict)."),
    histogram("atelier_memory_search_seconds", "Seconds that a search in a memory took."),
    histogram("atelier_memory_index_seconds", "Seconds of a search that the vector index took."),
    histogram("atelier_memory_embed_seconds", "Seconds that the embedder took for a query."),
    counter("atelier_memory_cached_queries_total", "Queries whose vector was known already."),
    counter("atelier_memory_embedded_texts_total", "Texts that were embedded to be stored."),
    counter(
        "atelier_memory_fallbacks_total",
        "Searches by words alone, by what did not answer (cause): embedder or index.",
    ),
    counter("atelier_memory_points_total", "Interactions that were written to the vector index."),
    gauge(
        "atelier_memory_waiting_collections",
        "Collections with interactions that the vector index does not have yet.",
    ),
];

/// Registers the descriptions, so that `/metrics` has a `# HELP` line for each metric.
pub(crate) fn describe() {
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Histogram => describe_histogram!(metric.name, Unit::Seconds, metric.help),
        }
    }
}

#[cfg(test)]
impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}
