export module tessera.app.outputs;

export import :metrics;     // the metrics file
export import :event_file;  // TensorBoard's event files
export import :progress;    // the progress lines
