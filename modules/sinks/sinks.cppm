// What a run tells, as a stream of events, and who receives it.
export module tessera.sinks;

export import :event;       // Event: the start, numbers of steps, spans, log lines, the end
export import :sink;        // Sink: the plugin kind; the built-in ones by name
export import :feed;        // SinkFeed: a bounded queue and a thread for a sink, which may fail
export import :stream;      // EventStream: one stream, told to all feeds
export import :sink_texts;  // identities, cut texts and secrets, for who writes a sink
