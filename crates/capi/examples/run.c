/* Runs a model whole and step by step: run MODEL. */
#include <stdio.h>
#include <stdlib.h>

#include "gatestream.h"

static void check(GsStatus status) {
  if (status != GS_STATUS_OK) {
    fprintf(stderr, "error %d: %s\n", (int)status, gs_last_error());
    exit(1);
  }
}

int main(int argc, char **argv) {
  if (argc != 2 || gs_abi_version() != 2) {
    fprintf(stderr, "usage: run MODEL\n");
    return 2;
  }
  GsModel *model = NULL;
  check(gs_model_open(argv[1], &model));
  GsSignature size;
  check(gs_model_signature(model, &size));
  printf("%zu inputs, %zu outputs\n", size.input, size.output);

  GsPlan *plan = NULL;
  if (gs_plan_estimate(model, 1, 20, 1000000, &plan) != GS_STATUS_INPUT) return 1;
  if (gs_model_save(model, "run.onnx") != GS_STATUS_INPUT) return 1;
  printf("an error: %s\n", gs_last_error());

  GsSession *session = NULL;
  check(gs_session_new(model, NULL, &session)); /* packs the weights, starts the threads */
  gs_model_free(model);

  const size_t steps = 20, batch = 1;
  float *x = malloc(steps * size.input * sizeof *x);
  float *y = malloc(steps * size.output * sizeof *y);
  for (size_t i = 0; i < steps * size.input; i++) x[i] = (float)(i % 7) / 7 - 0.4f;
  GsRun run = {.x = x, .steps = steps, .batch = batch, .y = y};
  check(gs_session_run(session, &run));

  float *h = calloc(size.hidden_state, sizeof *h);
  float *c = calloc(size.cell_state + 1, sizeof *c);
  float *step = malloc(size.output * sizeof *step);
  size_t different = 0;
  for (size_t t = 0; t < steps; t++) {
    check(gs_session_step(session, batch, x + t * size.input, h, c, step));
    for (size_t i = 0; i < size.output; i++) different += step[i] != y[t * size.output + i];
  }
  printf("step by step %zu of %zu values differ\n", different, steps * size.output);

  run.steps = 0;
  run.x = NULL;
  if (gs_session_run(session, &run) != GS_STATUS_ARGUMENT) return 1;
  printf("an error: %s\n", gs_last_error());

  free(x), free(y), free(h), free(c), free(step);
  gs_session_free(session);
  return different != 0;
}
