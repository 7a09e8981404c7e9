"""Tables, figures and HTML reports. The results that they show are computed in other packages."""
