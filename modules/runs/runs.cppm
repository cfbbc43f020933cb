// A run from its description to its last step: `RunSpec` says what is trained and how, is checked,
// and each rank trains its part.
export module tessera.runs;

// The description.
export import :spec;           // RunSpec: the sections of a config as plain values
export import :keys;           // its keys: names, ranges, documentation
export import :problems;       // everything that is wrong with it, in one error
export import :spec_check;     // checks between keys
export import :at_key;         // errors that name a key
export import :spike_policy;   // what it does at a step that is far from those before
export import :spec_json;      // the description that a checkpoint has
export import :data_sources;   // the sources that its section [data] names
export import :stored_inputs;  // files and folders that are in stores
export import :plugins;        // the plugins that it names

// The data.
export import :run_model;    // which model and tokenizer it names
export import :sources;      // what the data are read from
export import :exclusions;   // rows that it leaves out, as checkpoints have them
export import :row_finder;   // the rows that places name
export import :row_history;  // which row each step takes
export import :dataset;      // the batches
export import :text_files;   // the files of data.text

// What a run writes of its steps.
export import :ledger;         // where the time of a run goes
export import :run_record;     // what it says of itself, in checkpoints and exports
export import :export_record;  // and of what was exported of it
export import :metrics;        // the metrics file
export import :event_file;     // TensorBoard's event files
export import :progress;       // the progress lines
export import :listeners;      // all who are told of them, the sinks too
export import :model_card;     // what an exported model was trained on
export import :recorder;       // what a rank does during some steps, with times
export import :traced_steps;   // which steps are traced
export import :trace_file;     // the trace file
export import :resources;      // time and memory of this process

// What a run consists of.
export import :objects;       // from the description to the library's objects
export import :rates;         // what a captured step costs
export import :offload;       // values of captured steps that are kept in a file
export import :execution;     // how captured steps are executed
export import :links;         // what communication costs
export import :expert_loads;  // how many tokens each expert of a mixture has had
export import :fingerprint;   // values that determine a loss curve
export import :training_run;  // the run, where it begins, how its steps are taken

// What it trains.
export import :task;            // a model, its rows and its losses
export import :data_task;       // that of a config: a model, and the rows of files
export import :language;        // a language model on texts
export import :class_model;     // a model that tells the classes of texts
export import :classification;  // the classes of texts
export import :own_task;        // a program's own model, as functions
export import :objective;       // what is minimised over texts, and what is measured besides
export import :frozen_copy;     // the frozen copy that preferences are compared with
export import :loss;            // the losses of a batch of texts

// Steps.
export import :trainer;     // one rank's part of a run
export import :mode;        // the step of one rank, placed on a mesh
export import :device_fit;  // whether a device can run a step
export import :trial;       // steps tried on the meta device, before ranks are started

// From the checks before the start to the last step.
export import :record_writer;  // who keeps the record while it trains
export import :facts;          // what is known of a run before its ranks start
export import :saved_state;    // what a run begins with, compared with its description
export import :start;          // what a run looks at before it starts
export import :run_lock;       // one run at a time writes a folder
export import :rank_run;       // what one rank does, with its outputs
export import :healing;        // ranks that die are started again
export import :train;          // all of it, in order

// Questions to a run that has saved checkpoints.
export import :recorded_run;     // the run, as its checkpoints describe it
export import :step_rows;        // the rows of a step, by ranks and micro-batches
export import :verify;           // a run repeated from its record
export import :replay;           // a step computed again and looked at
export import :run_description;  // what two runs say of themselves, compared
export import :call_recorder;    // the calls of operators of a step, in files
export import :call_difference;  // two recordings of a step, compared
