export module tessera.app.trace;

export import :read;         // reads one back
export import :summary;      // where the time went
export import :draw;         // a picture
export import :black_box;    // what ranks did last, before a run failed
export import :stage_times;  // how long the stages of a model took
