"""Keras 3 with torch as its backend: compile, fit, evaluate, save and load."""

import os
import tempfile

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(15)
x = np.random.RandomState(0).randn(100, 8, 8, 1).astype(np.float32)
y = (x.mean((1, 2, 3)) > 0).astype(np.int64)
model = keras.Sequential([
    keras.layers.Conv2D(6, 3, activation="relu"), keras.layers.BatchNormalization(),
    keras.layers.Flatten(), keras.layers.Dense(2),
])  # fmt: skip
model.build((None, 8, 8, 1))
made = np.random.RandomState(1)  # what is drawn on a device is not what a CPU draws
model.set_weights([one if one.ndim == 1 else made.randn(*one.shape) * 0.1
                   for one in model.get_weights()])  # fmt: skip
model.compile(optimizer="adam", metrics=["accuracy"],
              loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))  # fmt: skip
history = model.fit(x, y, batch_size=24, epochs=4, validation_split=0.2, shuffle=False,
                    verbose=0).history  # fmt: skip
for name, values in history.items():
    for one in values:
        print("figure", name, one)
with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/model.keras")
    again = keras.models.load_model(f"{folder}/model.keras")
print("figure", "evaluated", again.evaluate(x, y, verbose=0)[0])
print("device", model.trainable_variables[0].value.device)
