"""Export of Keras models to SavedModel and TFLite, with the artifact run and compared.

Import the module of the format: `keras_attention.export.saved_model`, `.tflite`, `.parity`,
`.inspect`. Nothing is imported here, because each of them loads TensorFlow.
"""
