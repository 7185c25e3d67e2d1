// Many requests to an engine, each with the answer that a session gives alone: serve MODEL.
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <vector>

#include "gatestream.h"

namespace {

void check(GsStatus status) {
  if (status != GS_STATUS_OK) throw std::runtime_error(gs_last_error());
}

template <typename T, void (*Free)(T *)>
struct Deleter {
  void operator()(T *object) const { Free(object); }
};
using Model = std::unique_ptr<GsModel, Deleter<GsModel, gs_model_free>>;
using Session = std::unique_ptr<GsSession, Deleter<GsSession, gs_session_free>>;
using Engine = std::unique_ptr<GsEngine, Deleter<GsEngine, gs_engine_free>>;

using Values = std::vector<float>;

void on_end(void *user, GsStatus status, const float *values, size_t count, const char *message) {
  auto *promise = static_cast<std::promise<Values> *>(user);
  if (status == GS_STATUS_OK) {
    promise->set_value(Values(values, values + count));
  } else {
    promise->set_exception(std::make_exception_ptr(std::runtime_error(message)));
  }
}

}  // namespace

int main(int argc, char **argv) try {
  if (argc != 2) throw std::runtime_error("usage: serve MODEL");
  GsModel *opened = nullptr;
  check(gs_model_open(argv[1], &opened));
  Model model(opened);
  GsSignature size;
  check(gs_model_signature(model.get(), &size));
  GsSession *made = nullptr;
  check(gs_session_new(model.get(), nullptr, &made));
  Session session(made);
  GsEngine *started = nullptr;
  GsEngineOptions options{};
  options.max_request_nodes = 1000;
  check(gs_engine_start(model.get(), &options, &started));
  Engine engine(started);

  std::vector<Values> inputs;
  std::vector<std::promise<Values>> promises(32);
  for (size_t at = 0; at < promises.size(); at++) {
    const size_t steps = 1 + at % 9;
    Values x(steps * size.input);
    for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>((i * 31 + at) % 17) / 17 - 0.5f;
    check(gs_engine_submit(engine.get(), x.data(), steps, 1, 0, on_end, &promises[at], nullptr));
    inputs.push_back(std::move(x));
  }
  for (size_t at = 0; at < promises.size(); at++) {
    const Values answer = promises[at].get_future().get();
    const size_t steps = inputs[at].size() / size.input;
    Values alone(steps * size.output);
    GsRun run{};
    run.x = inputs[at].data(), run.steps = steps, run.batch = 1, run.y = alone.data();
    check(gs_session_run(session.get(), &run));
    if (answer != alone) throw std::runtime_error("the answers differ");
  }
  const size_t steps = 1001;
  const Values longer(steps * size.input);
  std::promise<Values> none;
  if (gs_engine_submit(engine.get(), longer.data(), steps, 0, 0, on_end, &none, nullptr) != GS_STATUS_OVERLOADED) {
    throw std::runtime_error("a request beyond the limit is accepted");
  }
  std::printf("%zu answers, each equal to the last bit\n", promises.size());
  return 0;
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
