export module tessera.app.data;

export import :run_tokenizer;  // the tokenizer of a run, of a checkpoint
export import :sources;        // what a run's data are read from
export import :dataset;        // the batches of a run
export import :text_files;     // the files of data.text
