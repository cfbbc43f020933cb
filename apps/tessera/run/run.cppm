export module tessera.app.run;

export import :setup;        // from a config to the library's objects
export import :loss;         // the losses of a batch
export import :rates;        // what a captured step costs
export import :links;        // what communication costs
export import :fingerprint;  // what determines the loss curve
export import :execution;    // how captured steps are executed
export import :offload;      // values of captured steps in a file
export import :trainer;      // one rank's part of a run
export import :mode;         // modes of data parallelism
export import :trial;        // steps tried on the meta device
export import :start;        // what a run looks at before it starts
export import :run_lock;     // one run at a time writes a folder
export import :metrics;      // the metrics file
export import :progress;     // the progress lines
export import :plan_table;   // the table before the first step
